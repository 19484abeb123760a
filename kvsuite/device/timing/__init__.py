"""How long the parts of a step take on this device: what a calibration is made of.

rounds     tasks called in rounds, each round in an order of its own; what comes out of it
grid       which batches, contexts and chunks are timed, by device
attention  decode attention through shuffled tables, beside the contiguous control, warm and cold
model      the rest of a decode step, the head, prefill chunks; batches of a replay
upload     a step's block tables, copied to the device
bench      all of them, and what they ran on
"""
