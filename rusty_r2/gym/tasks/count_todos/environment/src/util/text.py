def clean(text):
    return text.strip()  # TODO tabs
