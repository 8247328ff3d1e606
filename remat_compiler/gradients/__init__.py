"""Gradients that leave a backward as they are made: handed to their parameters, whose hooks run at once."""
