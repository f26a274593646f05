"""Options for memory that is not that of this machine, where no single command has them."""

import click

device_memory_option = click.option(
    "--device-memory",
    default="",
    show_default=False,
    metavar="SIZE",
    help="Memory of each device, such as 80GB.  [default: that of the devices here]",
)
host_memory_option = click.option(
    "--host-memory",
    default="",
    show_default=False,
    metavar="SIZE",
    help="Memory of the machine, such as 1TB.  [default: that of this machine]",
)


def first_given(device_memory: str) -> str:
    """Name of the first of the two options, one of which is given."""
    return "--device-memory" if device_memory else "--host-memory"
