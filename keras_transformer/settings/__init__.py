"""The settings of models and trainings: each is declared once, with its text and its check.

Keras is imported only when a check needs it, so that the command line shows settings quickly.
"""
