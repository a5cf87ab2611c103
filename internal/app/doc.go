// Package app builds every room of the house, hands each what it needs, and
// stops them in reverse.
package app
