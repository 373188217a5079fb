"""Parts that several families of operations use."""
