def encode(text):
    return []
