"""The routes of the page at `/`."""

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

if TYPE_CHECKING:
    from keras_transformer.serving.app import Server


def page_routes(server: "Server") -> list[BaseRoute]:
    """Returns the routes of the page, which shows the `models` of a server."""
    return []
