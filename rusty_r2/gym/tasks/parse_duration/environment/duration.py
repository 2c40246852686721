def seconds(text):
    return int(text)
