"""Trees for readers: text in brackets on several lines, and a drawing of the branches."""

from keras_transformer.parsing.trees import Tree


def format_tree(tree: Tree, width: int = 80) -> str:
    """Returns a tree in brackets; a constituent that does not fit into a line takes several.

    Args:
        tree: any tree.
        width: maximum length of a line, in characters, which deep trees and long words may exceed.

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
    stack = [(tree, "", "")]  # trees to write, each with its indentation and closing brackets
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
    """Returns a drawing of a tree, with a line for each constituent and each word.

    Args:
        tree: any tree.

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
    stack = [(tree, "", "")]  # trees to draw, each with the text before it and before its children
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
