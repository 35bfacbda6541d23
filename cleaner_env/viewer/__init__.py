"""Episodes as one HTML page that needs no network: raw beside purified."""

from cleaner_env.viewer.alignment import Row, align
from cleaner_env.viewer.page import build_page

__all__ = ["Row", "align", "build_page"]
