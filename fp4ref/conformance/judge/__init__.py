"""Judge bytes against bytes: where they differ, which rules they break, and on how much the answer rests."""
