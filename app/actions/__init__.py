"""All actions of the window, each declared once: name, key, where the key works, when it is possible, what it does.

One module per menu; a menu is a tuple of groups, with a separator between two groups.
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
