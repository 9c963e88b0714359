"""Trees for the eye: bracketed text with line breaks, and a drawing of branches."""

from keras_transformer.parsing.trees import Tree


def format_tree(tree: Tree, width: int = 80) -> str:
    """Writes a tree in brackets on several lines; what fits into a line stays together.

    Args:
        tree: any tree.
        width: the longest line, in characters; deep trees and long words may pass it.

    Returns:
        `str`, which `Tree.parse` reads again.

    Example:

    >>> from keras_transformer.parsing import Tree, format_tree
    >>> tree = Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (PRP$ its) (NN tail))))")
    >>> print(format_tree(tree, width=40))
    (S
      (NP (DT The) (NN dog))
      (VP
        (VBZ chases)
        (NP (PRP$ its) (NN tail))))
    """
    lines = []
    stack = [(tree, "", "")]  # What is still to be written: its indentation, what closes after it.
    while stack:
        tree, indentation, closing = stack.pop()
        line = f"{indentation}{tree}{closing}"
        if tree.is_leaf or len(line) <= width:
            lines.append(line)
            continue
        lines.append(f"{indentation}({tree.label}")
        *others, last = tree.children
        stack.append((last, indentation + "  ", closing + ")"))
        stack.extend((child, indentation + "  ", "") for child in reversed(others))
    return "\n".join(lines)


def draw_tree(tree: Tree) -> str:
    """Draws a tree as text, a line for each constituent and each word.

    Args:
        tree: any tree.

    Returns:
        `str`.

    Example:

    >>> from keras_transformer.parsing import Tree, draw_tree
    >>> print(draw_tree(Tree.parse("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")))
    S
    ├── NP
    │   ├── DT The
    │   └── NN dog
    └── VP
        └── VBZ barks
    """
    lines = []
    stack = [(tree, "", "")]  # What stands before the tree itself, and before its children.
    while stack:
        tree, before, below = stack.pop()
        if tree.is_leaf:
            lines.append(f"{before}{tree.label} {tree.word}")
            continue
        lines.append(before + tree.label)
        *others, last = tree.children
        stack.append((last, below + "└── ", below + "    "))
        stack.extend((child, below + "├── ", below + "│   ") for child in reversed(others))
    return "\n".join(lines)
