"""Which formula? Pure functions of tensors.

Leaves out models, rollouts and optimisers: an objective sees log-probabilities and counts, never a network.

Where the libraries that people use disagree, Burnish chose:

| case | TRL 1.16 | verl 0.9.1 | OpenRLHF 0.11.2 | Burnish |
|---|---|---|---|---|
| NaN under a mask of 0 | NaN | fine | NaN | no effect (1) |
| fully masked sequence, mean by sequence | counted | excluded | excluded | excluded |
| all-masked step, mean by token | 0 | NaN | NaN | 0, without gradient |
| epsilon on the group deviation | 1e-4 | 1e-6 | - | 1e-4 |
| near-constant group | 0, counted | 0, counted | - | masked (2) |
| group of one | refused in training | advantage = raw reward | - | masked (3) |
| KL gradient on policy | importance-weighted | k1/k2/k3, k3+ | opt-in unbiased | unbiased (4) |
| step cut into micro-batches | mean of means, DAPO by tokens | - | - | the whole step's counts (5) |

1. Tokens are selected by the mask, never multiplied by it.
2. It leaves the denominators too, and is counted apart (`advantages.GroupAdvantages`).
3. It has no siblings to be compared with.
4. Unless `kl_gradient` "direct" asks for that of the estimator itself (`grpo`).
5. In every normalisation: how a step is cut can never matter.
"""
