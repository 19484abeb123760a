"""The reference replay as compiled code: same rules, same rows, a hundred times the speed.

`kvsuite.replay.driver` over `kvsuite.engine.reference` is the definition; everything here is held against it,
column by column. Importing this package imports numba: nothing else in kvsuite may do so.
"""
