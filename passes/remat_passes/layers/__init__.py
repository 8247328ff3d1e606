"""The layers of the user's model, as its modules and values tell them."""
