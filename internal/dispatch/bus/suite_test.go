package bus_test

import (
	"testing"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/bus/bustest"
)

func TestSuiteInMemory(t *testing.T) {
	bustest.Run(t, func(*testing.T) bustest.Pair {
		b := bus.New()
		return bustest.Pair{Near: b, Far: b}
	})
}
