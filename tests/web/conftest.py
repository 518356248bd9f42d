"""The fixtures of the tests in this folder."""

from visits import axe, browser, guarded, server, visit

__all__ = ["axe", "browser", "guarded", "server", "visit"]
