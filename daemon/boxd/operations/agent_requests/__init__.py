"""Operations that the agent of a box performs: background commands, and watches of files."""
