"""The functions that one request passes, in the order of their first call: a debugger steps through one doorbell.

    target/debug/paradisk image create --format vhdx disk.vhdx --size 64M
    target/debug/paradisk bench --engine harness --adapter pvscsi --disk path=disk.vhdx --rw randwrite --duration 100ms --runs 1
    gdb -batch -x benches/trace.py --args target/debug/paradisk bench --engine harness --adapter pvscsi \
        --disk path=disk.vhdx --rw randread --block-size 4K --queue-depth 1 --duration 1s --runs 1 --coalescing off

A line for each function of the project that executes at least LEAST instructions of its own: their number, and its path. So those that only
return a field or call another function are left out. Those that are always inlined count for their callers. Generic arguments, closures and
derived code are left out, too.
"""
import re
import subprocess

import gdb

ENTRY = r"paradisk_devices::hba::<impl paradisk_devices::device::IoDevice for T>::on_doorbell$"
# Requests before the one that is traced: the adapter is set up, the map of the disk is filled.
WARM_UP = 500
LEAST = 20
MOST_STEPS = 100_000
IGNORED = re.compile(r"\{\{closure\}\}|drop_in_place|guest_tests|InternalBitFlags|spec::_::|PartialEq|Clone|BitOr")


def entries():
    """Mangled names of the entry: one for each copy of the generic function."""
    program = gdb.current_progspace().filename
    names = [subprocess.run(["nm", *option, program], capture_output=True, text=True).stdout for option in ([], ["-C"])]
    for plain, readable in zip(*(text.splitlines() for text in names)):
        if re.search(ENTRY, readable):
            yield plain.split()[-1]


def trace():
    """Instructions of each function from here until it returns."""
    own = {}
    stack = int(gdb.newest_frame().read_register("rsp"))
    for _ in range(MOST_STEPS):
        frame = gdb.newest_frame()
        if int(frame.read_register("rsp")) > stack:
            break
        name = re.sub(r"::h[0-9a-f]{16}$", "", frame.name() or "?")
        own[name] = own.get(name, 0) + 1
        gdb.execute("stepi", to_string=True)
    return own


for setting in ("pagination off", "confirm off", "breakpoint pending on", "suppress-cli-notifications on"):
    gdb.execute(f"set {setting}")
for name in entries():
    gdb.Breakpoint(name).ignore_count = WARM_UP
gdb.execute("run", to_string=True)
gdb.execute("set scheduler-locking step")
own = trace()
ours = [(n, name) for name, n in own.items() if "paradisk_" in name and not IGNORED.search(name) and n >= LEAST]
for n, name in ours:
    print(f"{n:6}  {name}")
print(f"{len(ours)} functions")
gdb.execute("kill")
