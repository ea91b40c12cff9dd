"""`python -m flashwave.doctor`: what flashwave finds on this machine, what it would run, whether that is right.

    python -m flashwave.doctor            # text to read, and to paste into a bug report
    python -m flashwave.doctor --json     # the same as one JSON object

The report says which files are loaded, which devices, drivers and versions there are, which backend and kernel a
typical call of each dtype takes and why, whether its results agree with a float64 reference, whether those of torch's
own scaled_dot_product_attention do, and what is missing. Checks run in processes of their own: one that is killed (an
illegal instruction, a fault of a driver) is a line of the report, not its end. The exit status is 1 if a result of
flashwave is wrong, or a check of it died.
"""
