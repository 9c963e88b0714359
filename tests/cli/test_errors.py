"""`describe` says what is wrong where the errors of TensorFlow mislead."""

import errno
import os

import pytest

from keras_transformer.cli.application import describe

pytestmark = pytest.mark.tensorflow_only("these are errors of TensorFlow")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("name", ["ResourceExhaustedError", "OutOfRangeError"])
def test_a_full_disk_is_named_with_the_file(name, number):
    import tensorflow as tf

    reason = os.strerror(number)
    text = "{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} "
    text += f"/exports/en de/part-00000; {reason} [Op:SaveV2]"
    error = getattr(tf.errors, name)(None, None, text)
    assert describe(error) == f"{reason}: '/exports/en de/part-00000'"


def test_memory_is_still_named():
    import tensorflow as tf

    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating [Op:Mul]")
    assert describe(error).startswith("out of memory; use a smaller --batch-size")
