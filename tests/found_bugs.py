"""Bugs that the tests against oracles found, each with the test that holds it, for the table."""

FOUND_BUGS = [
    (
        "Sinusoids in float32 were off by 3e-4 at position 5,000: the angle, thousands of radians, "
        "was rounded before whole turns were taken off it.",
        "tests/precision/test_long_sequences.py::"
        "test_sinusoids_are_within_the_rounding_of_the_compute_dtype",
    ),
    (
        "The loss at large logits lost digits, up to 7e-4 at logits of 10,000: terms as large as "
        "the logits cancelled.",
        "tests/precision/test_huge_logits.py::test_loss_is_exact_and_its_gradient_finite",
    ),
    (
        "In a TensorFlow graph of unknown length, learned positions beyond their table were left "
        "to the lookup, whose error does not name the table, and which gives zeros on a GPU.",
        "tests/precision/test_lengths.py::test_one_more_is_refused_in_a_graph_of_unknown_length",
    ),
]
