"""`ServerSettings`: the address of the server, how it joins requests, and its limits."""

import dataclasses

from keras_transformer.settings.setting import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    TEXT,
    TEXTS,
    Rule,
    Settings,
    setting,
)

_PORT = Rule(int, "a port from 0 to 65535", lambda port: 0 <= port <= 65535, "N")


@dataclasses.dataclass(frozen=True)
class ServerSettings(Settings):
    """The settings of `keras-transformer serve`.

    Args:
        host: Address to listen at; 0.0.0.0 lets other machines in.
        port: Port to listen at; 0 takes a free one.
        allowed_hosts: Further name of the server in addresses, such as that of a proxy; others are
            refused. May be repeated; None for this machine's names at 127.0.0.1, and any elsewhere.
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

    host: str = setting("127.0.0.1", TEXT, metavar="ADDRESS")
    port: int = setting(8501, _PORT)
    allowed_hosts: tuple[str, ...] | None = setting(None, TEXTS, "allowed_host", metavar="NAME")
    streams: int | None = setting(None, COUNT)
    max_batch_size: int = setting(64, COUNT)
    batch_timeout_ms: float = setting(2.0, NON_NEGATIVE, metavar="MS")
    max_queue_size: int = setting(1_000, COUNT)
    max_body_bytes: int = setting(4_000_000, COUNT)
    max_text_bytes: int = setting(20_000, COUNT)
    request_timeout: float = setting(60.0, POSITIVE, metavar="SECONDS")
    log_texts: bool = setting(False)
