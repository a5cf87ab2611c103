// Package swap tells the kernel where to keep memory that does not fit.
package swap
