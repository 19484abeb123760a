"""Block sizes and contiguous controls held against each other: same trace, same bytes, same layout."""
