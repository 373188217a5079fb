"""Operations on whole drives and trees of them: copies, snapshots, the trash."""
