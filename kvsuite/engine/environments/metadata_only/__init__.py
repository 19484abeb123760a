"""A folder that pip is given as import path, so that it finds the ``setuptools`` in it and no other."""
