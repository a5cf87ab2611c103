package daemon

import "io"

func sourceOf(r io.Reader) feed { return plain{r} }
