def balanced(text):
    return text.count("(") == text.count(")")
