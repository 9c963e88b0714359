"""Adam and the paper's learning rate in NumPy float64, from their formulas alone.

Kingma and Ba (2015); Vaswani et al. (2017), equation (3). Nothing of the package is imported.
"""

import numpy as np


def learning_rate(step, d_model, warmup_steps):
    """Equation (3); the first step is step 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def adam(parameter, gradients, rates, beta_1, beta_2, epsilon, variant="algorithm_1"):
    """The parameter after each step, given the gradient and the learning rate of each step.

    Algorithm 1 adds epsilon to the root of the corrected second moment. The last paragraph of
    section 2 reorders the computation and adds it, as "epsilon hat", to the root of the
    uncorrected one: "section_2".
    """
    first, second, history = 0.0, 0.0, []
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        if variant == "algorithm_1":
            first_corrected = first / (1 - beta_1**step)
            second_corrected = second / (1 - beta_2**step)
            change = rate * first_corrected / (np.sqrt(second_corrected) + epsilon)
        else:
            rate = rate * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
            change = rate * first / (np.sqrt(second) + epsilon)
        parameter = parameter - change
        history.append(parameter)
    return history
