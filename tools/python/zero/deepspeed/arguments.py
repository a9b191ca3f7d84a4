"""--deepspeed and --deepspeed_config, in a program's own parser."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", action="store_true", help="a flag for the program; it changes nothing by itself")
    group.add_argument("--deepspeed_config", help="the configuration's file")
    return parser
