"""Smaller problems with the same answer, each with the way back; and problems that are alike."""
