"""The network of boxes: links, the fence, the resolver, and egress rules."""
