def balanced(text):
    waiting = []
    pairs = {")": "(", "]": "[", "}": "{"}
    for letter in text:
        if letter in "([{":
            waiting.append(letter)
        elif letter in pairs:
            if not waiting or waiting.pop() != pairs[letter]:
                return False
    return not waiting
