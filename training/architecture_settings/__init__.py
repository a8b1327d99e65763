"""The settings of the architectures, in modules that do not import torch.

Every job checks the model's settings when it starts, even a job that does not need torch.

The file `<name>.py` has the settings of `training/architectures/<name>.py`. It contains

    class Settings(Strict)                                  the keys of this architecture in a model's YAML
    check(settings: Settings, features: Features) -> None   optional: raises ConfigError if the settings do
                                                            not fit the features
    check_loss(settings: Settings, loss: str) -> None       optional: raises ConfigError if the settings do
                                                            not fit `train.loss`
    VECTORS = True                                          optional: the model is a VectorModel, so it can
                                                            be the model of the source `retrieval`, and losses
                                                            over item vectors can train it
    READS_SCOPES = False                                    optional: the logit does not depend on the scopes
                                                            of features, so a training run can start from a
                                                            model whose features had other scopes

An architecture may also define these names in its own module in training/architectures, without a file in
this folder. Then the check of the settings imports torch. The check also imports torch if the architecture is
in another package.
"""
