"""One graph at many sizes: which compiled variant runs a call, and when another one is made."""
