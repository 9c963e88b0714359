"""The settings of models and trainings: each is declared once, with its text and its check.

Nothing here imports Keras, so that the command line can show every setting at once.
"""
