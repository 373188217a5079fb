"""Operations that the agent of a box performs: background commands, file watches, ports."""
