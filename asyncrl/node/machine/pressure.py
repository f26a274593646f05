"""
Memory pressure of this machine, as Linux reports it: https://docs.kernel.org/accounting/psi.html

    some avg10=1.27 avg60=0.40 avg300=0.11 total=123456        % of the time in which some process waited for memory
"""

from pathlib import Path

PRESSURE = Path("/proc/pressure/memory")


def memory_stall(path: Path = PRESSURE) -> float:
    """Share of the last 10 seconds in which some process waited for memory; 0 where the system does not tell."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:  # The kernel is built without it, or has it switched off.
        return 0.0
    averages = dict(field.split("=") for field in text.partition("\n")[0].split()[1:])
    return float(averages["avg10"]) / 100
