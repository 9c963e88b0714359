"""Bugs that the tests against oracles found, each with the test that guards against it."""

FOUND_BUGS = [
    (
        "Sinusoids in float32 were off by 3e-4 at position 5,000, because the angle of thousands "
        "of radians was rounded before it was reduced to one turn.",
        "tests/precision/test_long_sequences.py::"
        "test_sinusoids_are_within_the_rounding_of_the_compute_dtype",
    ),
    (
        "The loss lost digits at large logits, up to 7e-4 at logits of 10,000, because terms as "
        "large as the logits canceled.",
        "tests/precision/test_huge_logits.py::test_loss_is_exact_and_its_gradient_finite",
    ),
    (
        "In a TensorFlow graph of unknown length, learned positions beyond their table reached the "
        "lookup. Its error does not name the table, and on a GPU it gives zeros.",
        "tests/precision/test_lengths.py::test_one_more_is_refused_in_a_graph_of_unknown_length",
    ),
]
