"""Design of a control law with python-control: from the plant to gains that production reads.

`plant` ► `identify` ► `tune` ► `robustness` ► `closed_loop` ► `figures`; each has a `main()` that
returns its result, and `roma design …` prints it. docs/control.md derives what they compute.

Nothing runs at import, and nothing outside this package imports python-control: it needs the
extra `design`. No control law is written here a second time: the loops run production's `step()`.
"""
