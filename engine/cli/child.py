"""`child`: an engine for a window on another machine, which starts it over ssh."""

from __future__ import annotations

import argparse


def add_child(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(func=child_command)


def child_command(_args: argparse.Namespace) -> int:
    from engine.client.child import main

    main(is_far=True)
    return 0
