"""A log like Kaggle's Outbrain Click Prediction: displays of several ads, of which one is clicked.

A row is one ad of one display. It is joined with the competition's other tables (events, promoted_content,
documents_*), as NVIDIA's Wide & Deep joins them first. Read the modules in this order: columns, documents
(documents, ads and users), displays (who sees which ads and clicks which), rows (to lines), summary.

A display has 2 to 12 ads. The user clicks exactly one of them, with a probability proportional to
exp(appeal). This is a softmax over the display, drawn by Gumbel-max. An ad's appeal is a sum of effects of
columns of its row:

    likeness of the two documents' topics, and of their categories      cosine of the sets
    topic of the document × topic of the promoted document             a taste
    platform × category of the promoted document                       a taste
    country × publisher of the promoted document                       a taste
    ad, advertiser                                                      a quality for each
    days since the promoted document was published                     by its logarithm

A ranking of a display by appeal has the best possible MAP@12, and needs one row at a time. The best AUC is
that of the click probabilities, which depend on the other ads of the display. A score of single rows does not
quite reach it.
"""
