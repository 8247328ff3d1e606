"""Plans of earlier compilations: found by what they answer, judged anew before they are used."""
