"""One folder for each paper or feature that was measured: its programs, and a README.md with what came of it.

Programs of a study run in the folder above, where they find `instruments`, `zoo` and each other:

    cd benchmarks
    python -m studies.uniform_chains.uniform_chains
"""
