"""From texts to batches: files, tokenizers, word vectors, and the order in which examples meet."""
