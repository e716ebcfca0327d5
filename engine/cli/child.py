"""`child`: an engine for a window on another machine, which starts it over ssh."""

from __future__ import annotations

import argparse


def add_child(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--credit", type=int, default=1 << 17, metavar="BYTES", help="of pictures that are on their way"
    )
    parser.set_defaults(func=child_command)


def child_command(args: argparse.Namespace) -> int:
    from engine.client.child import main

    main(max(1, args.credit))
    return 0
