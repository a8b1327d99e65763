"""A log shaped like that of Kaggle's Outbrain Click Prediction: displays of several ads, exactly one of which is clicked.

A row is one ad of one display, already joined with what the competition keeps in tables of its own (events, promoted_content,
documents_*), as NVIDIA's Wide & Deep joins them first. Read in this order: columns, documents (who is there), displays (who
sees which ads and clicks which), rows (to lines), summary.

A display has 2 to 12 ads. The user clicks exactly one of them, with a chance proportional to exp(appeal): a softmax over the
display, drawn by Gumbel-max. An ad's appeal is a sum of effects that its row tells:

    likeness of the two documents' topics, and of their categories      cosine of the sets
    topic of the document × topic of the promoted one                   a taste
    platform × category of the promoted document                       a taste
    country × publisher of the promoted document                       a taste
    ad, advertiser                                                      a quality of each
    days since the promoted document was published                     by its logarithm

Whoever ranks a display by appeal has the best MAP@12 there is, and needs one row at a time to do so. The best AUC is that of
the chances, which know the other ads of the display: no score of single rows quite reaches it.
"""
