"""Every action of the window, declared once: name, key, where it acts, when it is possible and what it does.

A module a menu; a menu is groups of actions, with a line between two groups.
"""

from __future__ import annotations

from app.actions.cache import CACHE
from app.actions.edit import EDIT
from app.actions.files import FILES
from app.actions.help import HELP
from app.actions.run import RUN
from app.actions.view import VIEW
from app.control.actions import Menus

MENUS: Menus = {"&File": FILES, "&Edit": EDIT, "&Run": RUN, "&Cache": CACHE, "&View": VIEW, "&Help": HELP}
