"""Generates a log like that of Kaggle's competition Outbrain Click Prediction.

Users click one ad of each display. A row is one ad of one display. A row already contains the columns of the
competition's other tables (events, promoted_content, documents_*). NVIDIA's Wide & Deep example must join
these tables first. Read `displays` first (documents, ads, users, and which user sees and clicks which ads),
then `rows` (columns, conversion of displays to lines, and counts).

A display is shown on a document (a web page), and each ad promotes another document. A display has 2 to 12
ads. The user clicks exactly one of them, with a probability proportional to exp(appeal). So the
click is a draw from the softmax over the ads (Gumbel-max). An ad's appeal is a sum of effects of columns of
its row:

    similarity of the two documents' topics, and of their categories   cosine of the two sets
    topic of the document × topic of the promoted document             one effect per pair (a taste)
    platform × category of the promoted document                       one effect per pair (a taste)
    country × publisher of the promoted document                       one effect per pair (a taste)
    ad, advertiser                                                     one effect for each (a quality)
    days since the promoted document was published                     proportional to the logarithm

A ranking of each display's ads by appeal has the best possible MAP@12. The appeal depends only on the ad's
own row. A ranking of all rows by click probability has the best possible AUC. The click probability also
depends on the other ads of the display, so a model that scores each row alone does not quite reach this AUC.
"""
