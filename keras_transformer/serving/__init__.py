"""The HTTP server of `keras-transformer serve`, which speaks TensorFlow Serving's REST protocol."""

from typing import Annotated

from annotated_types import Ge, Le

from keras_transformer.settings.base import (
    Allowed,
    Count,
    NonNegative,
    Positive,
    Settings,
    Texts,
    settings_dataclass,
)


@settings_dataclass
class ServerSettings(Settings):
    """The settings of `keras-transformer serve`.

    Args:
        host: Address to listen at; 0.0.0.0 lets other machines in.
        port: Port to listen at; 0 takes a free one.
        allowed_hosts: Host name that requests may have, besides this machine's own, such as that of
            a proxy. May be repeated; None for its own names at 127.0.0.1, and any name elsewhere.
        streams: Number of batches that are computed at the same time; None for the number of cores
            on a CPU, otherwise 1.
        max_batch_size: Maximum number of texts in a batch of requests; 1 joins no requests.
        batch_timeout_ms: Milliseconds without a further request after which a batch begins; in all
            it waits at most ten times as long.
        max_queue_size: Maximum number of texts that wait to be computed, for each signature, and of
            texts in a request.
        max_body_bytes: Maximum size of the body of a request.
        max_text_bytes: Maximum size of a text in UTF-8.
        request_timeout: Maximum seconds from the headers of a request to its answer.
        log_texts: Whether the texts of requests are logged.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535), Allowed("a port from 0 to 65535")] = 8501
    allowed_hosts: Texts | None = None
    streams: Count | None = None
    max_batch_size: Count = 64
    batch_timeout_ms: NonNegative = 2.0
    max_queue_size: Count = 1_000
    max_body_bytes: Count = 4_000_000
    max_text_bytes: Count = 20_000
    request_timeout: Positive = 60.0
    log_texts: bool = False
